"""`neuraxis bench training`: training steps, compared with torch's."""
