"""Errors of engines: raised by every engine and caught by whoever drives one."""


class EngineError(Exception):
    """An engine could not do what it was asked: the root of all errors of this package."""


class SamplingError(EngineError):
    """Sampling parameters are out of range, or the engine cannot honour them."""


class PromptTooLong(EngineError):
    """A prompt leaves no room for a single token in the engine's context."""


class WeightMismatch(EngineError):
    """A weight update does not fit the model it is meant for; the model is unchanged."""


class EngineClosed(EngineError):
    """The engine was closed, before or while it served the request."""


class UnsupportedRequest(EngineError):
    """A request asks for what the engine does not have: an adapter, media, routed experts, log-probs."""


class EngineUnavailable(EngineError):
    """The process or endpoint behind an engine is dead, or does not answer."""


class EngineLibraryError(EngineError):
    """The library that an engine adapts is not installed, or has a version that it was not written for."""
