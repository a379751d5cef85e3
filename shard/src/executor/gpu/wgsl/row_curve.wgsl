    for (var i = t; i < cols; i = i + 64u) { row_out[row * cols + i] = CURVE(src[row * cols + i]); }
