"""What the bytes of a record become: declared columns, and the decoders that fill them."""
