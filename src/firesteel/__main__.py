"""`firesteel`, and `python -m firesteel`."""

import sys

try:
    import signal

    # Outside of `main`, which handles interrupts, Ctrl-C ends the process without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from firesteel.cli.main import main
except KeyboardInterrupt:
    sys.exit(130)

if __name__ == "__main__":
    main()
