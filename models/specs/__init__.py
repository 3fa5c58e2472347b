"""What a model and a GPU are, and which cells are looked at; reads files that strangers wrote."""
