"""From ops to kernels: nodes grouped, formulas composed, loops collapsed and named alike."""
