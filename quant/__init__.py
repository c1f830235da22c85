"""What a number becomes: weight quantiser and its numeric references."""
