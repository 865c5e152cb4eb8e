"""Other registries of launches for a GB10, held against the catalog flag by flag (`docs/registries.md`)."""
