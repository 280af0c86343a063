"""Fine-tuning an encoder on tasks with labels: GLUE and SQuAD."""
