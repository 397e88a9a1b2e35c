//! A model folder becomes a ModelCard: config, tensors, readouts and assets by digest
