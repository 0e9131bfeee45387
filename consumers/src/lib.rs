//! Moves each subscription's events from Kafka to its sink.

mod event;
mod key_queues;
mod offsets;
mod retry;
mod sink;
mod verdict;
