#![cfg(not(loom))]
