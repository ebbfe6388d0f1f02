"""Settings, runs and presets: dataclasses and data, no work."""
