"""Stand-in for the tacotron2 submodule."""
