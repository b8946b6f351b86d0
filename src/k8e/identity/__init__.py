"""Identity: who is calling. Everything else asks this room and trusts its answer."""

from k8e.identity.callers import Caller, Role, local_caller, uid_owner
from k8e.identity.certificates import ClientCertificates
from k8e.identity.doorkeeper import Admitted, Doorkeeper
from k8e.identity.keys import ApiKey, KeyRing
from k8e.identity.office import Office
from k8e.identity.peers import LoopbackIdentifier
from k8e.identity.pki import Authority, ServerCertificate, ensure_server_certificate, host_names
from k8e.identity.presented import Peer, Presented, TcpPeer, UnixPeer
from k8e.identity.sockdiag import SocketTable

__all__ = [
    "Admitted",
    "ApiKey",
    "Authority",
    "Caller",
    "ClientCertificates",
    "Doorkeeper",
    "KeyRing",
    "LoopbackIdentifier",
    "Office",
    "Peer",
    "Presented",
    "Role",
    "ServerCertificate",
    "SocketTable",
    "TcpPeer",
    "UnixPeer",
    "ensure_server_certificate",
    "host_names",
    "local_caller",
    "uid_owner",
]
