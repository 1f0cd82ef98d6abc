"""Listening UNIX sockets in the file system, which only their user can open."""

import errno
import os
import socket
import stat

SOCKET_MODE = 0o600


Identity = tuple[int, int]
"""Device and inode of a file."""


def listen(path: str, backlog: int) -> tuple[socket.socket, Identity]:
    """A non-blocking socket that listens at `path` for this user only, and its file for `unlink`.
    Raises OSError: EADDRINUSE where the path is in use or is no socket."""
    listener, identity = bind(path, socket.SOCK_STREAM)
    try:
        listener.listen(backlog)
    except BaseException:
        listener.close()
        unlink(path, identity)
        raise
    return listener, identity


def bind(path: str, kind: int) -> tuple[socket.socket, Identity]:
    """A non-blocking socket of a kind at `path` for this user only, and its file for `unlink`.
    Raises OSError as `listen` does."""
    listener = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    identity = (0, 0)
    try:
        # Linux gives the path the mode that the socket has when it is bound, so there is no
        # moment at which somebody else could connect.
        os.fchmod(listener.fileno(), SOCKET_MODE)
        _bind(listener, path)
        status = os.stat(path)
        identity = (status.st_dev, status.st_ino)
    except BaseException:
        listener.close()
        unlink(path, identity)
        raise
    return listener, identity


def unlink(path: str, identity: Identity) -> None:
    """Remove `path` if it is still the same file."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if (status.st_dev, status.st_ino) == identity:
        os.unlink(path)


def _bind(listener: socket.socket, path: str) -> None:
    """Bind to `path`, in the place of a socket that nobody listens to any more."""
    try:
        listener.bind(path)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EADDRINUSE, "the path is not a socket", path) from None
        if _is_alive(path):
            raise OSError(errno.EADDRINUSE, "another process serves this socket", path) from None
        os.unlink(path)
        listener.bind(path)


def _is_alive(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True
