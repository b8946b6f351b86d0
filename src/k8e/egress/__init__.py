"""The network of sandboxes: a router namespace, a resolver and a proxy, in a daemon with a life of its own."""
