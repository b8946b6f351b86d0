"""Identity: who is calling. Everything else asks this room and trusts its answer."""

from k8e.identity.peers import Identifier, LoopbackIdentifier, Peer, uid_owner
from k8e.identity.pki import ServerCertificate, ensure_server_certificate, host_names
from k8e.identity.sockdiag import SocketTable

__all__ = [
    "Identifier",
    "LoopbackIdentifier",
    "Peer",
    "ServerCertificate",
    "SocketTable",
    "ensure_server_certificate",
    "host_names",
    "uid_owner",
]
