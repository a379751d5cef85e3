    // What attention gives times the sigmoid of its gate, which lies behind each head's query.
    // params: 1 stride of the rows of gates, 2 width of a head.
    for (var i = t; i < cols; i = i + 64u) {
        let gate = weight[row * params[1] + (i / params[2] * 2u + 1u) * params[2] + i % params[2]];
        row_out[row * cols + i] = f_mul(src[row * cols + i], f_sigmoid(gate));
    }
