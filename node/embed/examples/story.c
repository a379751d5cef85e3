/* Asks a model from C and shows the answer while it is computed.
 *
 *   cargo build --release -p shoal-embed
 *   cc -I node/embed/include -o story node/embed/examples/story.c -L target/release -lshoal
 *   LD_LIBRARY_PATH=target/release ./story "Tell me a story about a fox" [SEED [TEMPERATURE [MAX_TOKENS [MODEL]]]]
 */
#include <shoal.h>
#include <stdio.h>
#include <stdlib.h>

static int show(const char *piece, size_t bytes, void *user) {
    (void)user;
    /* Standard output that is closed ends the answer. */
    return fwrite(piece, 1, bytes, stdout) != bytes || fflush(stdout) != 0;
}

int main(int argc, char **argv) {
    const char *prompt = argc > 1 ? argv[1] : "Tell me a story about a fox";
    shoal_options options = shoal_defaults();
    shoal_model *model;
    int ended;

    if (shoal_abi() != SHOAL_ABI) {
        fprintf(stderr, "this is shoal %s, whose interface is another\n", shoal_version());
        return 1;
    }
    if (argc > 2) options.seed = strtoull(argv[2], NULL, 10);
    if (argc > 3) options.temperature = strtof(argv[3], NULL);
    if (argc > 4) options.max_tokens = (uint32_t)strtoul(argv[4], NULL, 10);
    model = shoal_load(argc > 5 ? argv[5] : "minnow", 0);
    if (model == NULL) {
        fprintf(stderr, "%s\n", shoal_last_error());
        return 1;
    }
    ended = shoal_generate(model, prompt, &options, show, NULL);
    if (ended == SHOAL_FAILED) fprintf(stderr, "%s\n", shoal_last_error());
    putchar('\n');
    shoal_free(model);
    return ended == SHOAL_FAILED;
}
