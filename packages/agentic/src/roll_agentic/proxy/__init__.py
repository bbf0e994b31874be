"""An OpenAI-compatible server that records what agents sample, and runners for agents of any kind."""

from roll_agentic.proxy.agent import AgentEpisode, AgentResult, AgentRunner
from roll_agentic.proxy.server import ProxyServer, ServerLimits
from roll_agentic.proxy.session import RecordedCall, Session, SessionBook, SessionClosed, UnknownSession

__all__ = [
    "AgentEpisode",
    "AgentResult",
    "AgentRunner",
    "ProxyServer",
    "RecordedCall",
    "ServerLimits",
    "Session",
    "SessionBook",
    "SessionClosed",
    "UnknownSession",
]
