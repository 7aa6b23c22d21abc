"""What every package needs: errors, element types, environment variables, formatting."""
