"""What the C library reports, as exceptions."""

from __future__ import annotations

from ._library import library


class Error(RuntimeError):
    """A request failed. The text says what was asked, what was there and what to do."""

    status: int
    """The status of the C interface."""
    driver_code: int
    """The driver's code, a `CUresult`; 0 if the driver was not the reason."""
    had_no_effect: bool
    """Whether nothing was changed: memory that was to be freed can be freed again."""


class InvalidValueError(Error, ValueError):
    """An argument is wrong; nothing was changed."""


class OutOfMemoryError(Error, MemoryError):
    """Not enough memory; nothing was changed."""


class NotSupportedError(Error, NotImplementedError):
    """The device, the driver or the system cannot do this."""


class NoDriverError(Error):
    """There is no CUDA driver, or it is too old."""


class InUseError(Error):
    """The object is in use."""


_CLASSES = {
    1: InvalidValueError,
    2: OutOfMemoryError,
    3: NotSupportedError,
    4: NoDriverError,
    5: InvalidValueError,
    7: InUseError,
}


FORKED = 10
"""The status in a fork of a process that has used a GPU."""
CAPTURING = 11
"""The status where a stream is being captured."""


def check(status: int) -> None:
    """Raises what a function of the library reported."""
    if status == 0:
        return
    message = library.cudamem_last_error_message()
    driver_code = library.cudamem_last_error_driver_code()
    had_no_effect = bool(library.cudamem_last_error_had_no_effect())
    # After all that is read: Python may collect garbage for a new object, and what fails then takes the place of the thread's
    # last error.
    error = _CLASSES.get(status, Error)(message.decode(errors="replace"))
    error.status = status
    error.driver_code = driver_code
    error.had_no_effect = had_no_effect
    raise error
