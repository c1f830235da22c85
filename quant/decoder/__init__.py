"""INT8 decoders: `ranges` observes a float decoder, `sensitivity` says where 16 bits pay, `encodings` decides what
every integer means, `qdq` builds the graphs, `ports` describes their inputs and outputs, `stream` runs them."""
