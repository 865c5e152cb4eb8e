"""A separate process that writes the time to its output about fifty times per second, as a server would.

Run as a file and without site packages: it must do nothing but wait and write. Each record is the time of
sending, and how late this machine woke it up. It ends when its output is closed.
"""

import os
import struct
import time

INTERVAL_S = 0.02
RECORD = struct.Struct("dd")


def main() -> None:
    due = time.perf_counter()
    while True:
        due += INTERVAL_S
        time.sleep(max(0.0, due - time.perf_counter()))
        now = time.perf_counter()
        try:
            os.write(1, RECORD.pack(now, now - due))
        except OSError:
            return
        due = max(due, now - INTERVAL_S)  # after a pause, ticks are not made up for


if __name__ == "__main__":
    main()
