"""Values -> text for people, JSON for programs, annotations for CI. Computes nothing itself."""
