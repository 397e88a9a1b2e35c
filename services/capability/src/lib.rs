//! Registry of what each executor has really bound, and the mesh's service discovery
