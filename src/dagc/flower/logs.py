"""The log of this engine: `dagc.flower`, as the other engines have theirs, and among Flower's own lines, too."""

from logging import INFO, NOTSET, Handler, LogRecord, getLogger

from flwr.common.logger import FLOWER_LOGGER

__all__ = ["log"]


class _AmongFlowers(Handler):
    """Hands records to the handlers that Flower's logger has at that moment: the console, a file, a stream."""

    def emit(self, record: LogRecord) -> None:
        if FLOWER_LOGGER.isEnabledFor(record.levelno):
            for handler in FLOWER_LOGGER.handlers:
                if record.levelno >= handler.level:
                    handler.handle(record)


log = getLogger("dagc.flower")
log.addHandler(_AmongFlowers())
if log.level == NOTSET:
    log.setLevel(INFO)  # as Flower's; else it would be that of the root
