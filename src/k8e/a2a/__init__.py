"""The Agent2Agent protocol for agents: a message is code to run, a task is its run, over the SDK and nothing else of ours.

It does not know where it is served: the agents' HTTP door mounts its routes. The protocol's library takes most of a
second to import, so whoever mounts them imports this when it is needed.
"""
