"""A worker that dies in mid-push: some servers have the batch whole, one has half a frame, the others nothing.

Runs the real worker; only the socket's send is replaced, so that at the given exchange the last server's frame is cut
in half and the process is killed as kill -9 would.
"""

import os
import signal
import sys

from trimtab.core.ps import client
from trimtab.core.training import worker
from trimtab.core.wire import frames, sockets

PUSHES_BEFORE = 20


def main():
    whole, pushes = sockets.DataConnection.send, 0

    def send(self, header, sections):
        nonlocal pushes
        if header.flags & frames.PUSH:
            pushes += 1
            if pushes > PUSHES_BEFORE and pushes % 2 == 0:
                data = header.pack() + b"".join(bytes(memoryview(one).cast("B")) for one in sections if len(one))
                self._socket.sendall(data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
        whole(self, header, sections)

    client.DataConnection.send = send
    return worker.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
