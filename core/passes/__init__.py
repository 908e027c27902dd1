"""Graph passes: Module -> Module, in the order of pipeline.PIPELINE."""
