"""`audit`: reads a checkpoint, has it judged, and puts what was found into a report.

Reads headers, scales and small files; all bytes only when asked. Changes nothing.
"""

from firesteel.workshop.audit.audit import AuditReport, audit

__all__ = ["AuditReport", "audit"]
