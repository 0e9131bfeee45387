//! Where events go. One folder per kind, each with the same four parts: config, encode, classify, deliver.

pub(crate) mod webhook;
