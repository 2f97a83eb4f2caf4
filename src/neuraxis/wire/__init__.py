"""Values to bytes and back: the serializer, array frames and the envelope of messages."""
