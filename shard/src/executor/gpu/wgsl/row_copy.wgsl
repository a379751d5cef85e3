    // params: 1 stride of the source, or 0 where its rows are as wide.
    let source = row * select(params[1], cols, params[1] == 0u);
    for (var i = t; i < cols; i = i + 64u) { row_out[row * cols + i] = src[source + i]; }
