    // What a recurrence gives, normed head by head and gated.
    // params: 2 stride of the rows it is in, 3 its first column, 4 the first column of its gate, 5 width of what is normed or 0,
    // 6 the gate comes before the norm, 7 the gate is a sigmoid, 8 values of the norm's weights, which repeat.
    let source = row * params[2];
    for (var i = t; i < cols; i = i + 64u) {
        var x = src[source + params[3] + i];
        if (params[6] != 0u) { x = f_mul(x, f_silu(src[source + params[4] + i])); }
        row_out[row * cols + i] = x;
    }
    storageBarrier();
    workgroupBarrier();
    let width = params[5];
    let lane = t % 16u;
    // Four at a time, sixteen threads each.
    for (var first = 0u; first < cols && width != 0u; first = first + 4u * width) {
        let begin = first + t / 16u * width;
        var sum = 0.0;
        if (begin < cols) {
            for (var i = begin + lane; i < begin + width; i = i + 16u) {
                sum = f_fma(row_out[row * cols + i], row_out[row * cols + i], sum);
            }
        }
        sums_of_threads[t] = sum;
        workgroupBarrier();
        if (begin < cols) {
            var sums: array<f32, 16>;
            for (var i = 0u; i < 16u; i = i + 1u) { sums[i] = sums_of_threads[t - lane + i]; }
            let mean = f_div(tree_of(sums), f32(width));
            let inverse = f_div(1.0, f_sqrt(f_add(mean, bitcast<f32>(params[1]))));
            for (var i = begin + lane; i < begin + width; i = i + 16u) {
                var x = f_mul(f_mul(row_out[row * cols + i], inverse), weight[i % params[8]]);
                if (params[6] == 0u) {
                    let gate = src[source + params[4] + i];
                    var factor = 0.0;
                    if (params[7] != 0u) { factor = f_sigmoid(gate); } else { factor = f_silu(gate); }
                    x = f_mul(x, factor);
                }
                row_out[row * cols + i] = x;
            }
        }
        workgroupBarrier();
    }
