//! Owns one device: weights, layer plan, kernel workers, admission queue
