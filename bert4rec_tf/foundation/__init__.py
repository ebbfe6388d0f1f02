"""What every other folder uses: errors, atomic file writes, progress, signals. Imports nothing from the others."""
