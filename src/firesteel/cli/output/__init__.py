"""Values -> text for people, JSON for programs."""
