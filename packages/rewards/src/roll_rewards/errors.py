"""The one root of the errors this package raises; every caller may catch it alone."""


class RewardError(Exception):
    """A grader that cannot be made or used as asked: unknown name, wrong option, unusable reference.

    The message says what was wrong, what was got, what is allowed and where. It is the only
    argument, so the error survives pickling between processes.
    """
