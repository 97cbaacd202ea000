//! Results of experiments, for people: one HTML page with plots, and tables for the terminal.

pub mod schema;
