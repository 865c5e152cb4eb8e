"""Other hosts over OpenSSH's own client: commands, files, sessions.

The user's configuration, agent and known hosts apply. Commands to one host share a connection
(ControlMaster). Nothing here asks for a password: what needs one fails with what to type.
"""

from firesteel.edge.ssh.client import (
    Finished,
    SshTarget,
    fingerprint,
    forget,
    make_key,
    run,
    send_files,
    session_argv,
    ssh_argv,
)

__all__ = [
    "Finished",
    "SshTarget",
    "fingerprint",
    "forget",
    "make_key",
    "run",
    "send_files",
    "session_argv",
    "ssh_argv",
]
