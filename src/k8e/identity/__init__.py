"""Identity: who is calling. Everything else asks this room and trusts its answer."""

from k8e.identity.callers import Caller, Role, local_caller, uid_owner
from k8e.identity.peers import Identifier, LoopbackIdentifier, Peer
from k8e.identity.pki import ServerCertificate, ensure_server_certificate, host_names
from k8e.identity.sockdiag import SocketTable

__all__ = [
    "Caller",
    "Identifier",
    "LoopbackIdentifier",
    "Peer",
    "Role",
    "ServerCertificate",
    "SocketTable",
    "ensure_server_certificate",
    "host_names",
    "local_caller",
    "uid_owner",
]
