"""What every op is made of: declaration, tensor, lowering, variants."""
