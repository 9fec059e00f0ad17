"""The log of this engine: `dagc.flower`, as the other engines have theirs, also shown among Flower's own lines."""

from logging import INFO, NOTSET, Handler, LogRecord, getLogger


class _ForwardToFlower(Handler):
    """Hands records to the handlers that Flower's logger has at that moment: the console, a file, a stream."""

    def emit(self, record: LogRecord) -> None:
        if getLogger("flwr").isEnabledFor(record.levelno):
            for handler in getLogger("flwr").handlers:
                if record.levelno >= handler.level:
                    handler.handle(record)


log = getLogger("dagc.flower")
log.addHandler(_ForwardToFlower())
if log.level == NOTSET:
    log.setLevel(INFO)  # as Flower's; else it would be that of the root
