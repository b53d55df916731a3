//! What lies beside a blob so that any part of it can be checked without reading the rest.
