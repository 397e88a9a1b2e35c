//! The front door: gRPC and HTTP faces of one service
