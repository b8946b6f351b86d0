"""The Model Context Protocol for agents: twelve tools and the workspace's files, over the SDK and nothing else of ours.

It does not know where it is hosted: the server serves it as a stream (`ServeMcp`), the agents' HTTP door as a web
application. The protocol's library takes most of a second to import, so whoever hosts this imports it when it is needed.
"""
