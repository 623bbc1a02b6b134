
/*
 * Runs a target without a fuzzer: its corpus, and then so many inputs made of it
 * and of its dictionary, the same ones each time.  An input that leaves memory
 * behind is a finding, too.
 *
 *     TARGET CORPUS DICTIONARY NUMBER FINDING
 *
 * FINDING: the file that has the input under way.
 */


#include "fuzz.h"

#include <glob.h>


/* of AddressSanitizer; gcc 12 lacks the header */

size_t __sanitizer_get_current_allocated_bytes(void);


#define MAIN_LEN    4096
#define MAIN_MOST   64

/* an input whose memory grows so often has a leak; less is a cache's */

#define MAIN_GROWS  8


typedef struct {
    size_t    len;
    u_char    data[MAIN_LEN];
} input_t;


static input_t     corpus[MAIN_MOST];
static ngx_uint_t  ninputs;
static input_t     words[MAIN_MOST];
static ngx_uint_t  nwords;
static uint64_t    seed = 1;
static FILE       *finding;


static void
main_read(char *path)
{
    FILE     *f;
    input_t  *in;

    f = fopen(path, "r");
    hold(f && ninputs < MAIN_MOST);

    in = &corpus[ninputs++];
    in->len = fread(in->data, 1, MAIN_LEN, f);
    hold(feof(f));

    fclose(f);
}


/* a line is a word in quotes, in which \\, \" and \xAB are one byte */

static void
main_dictionary(char *path)
{
    FILE          *f;
    char           line[256], *p;
    input_t       *word;
    unsigned int   byte;

    f = fopen(path, "r");
    hold(f != NULL);

    while (fgets(line, sizeof(line), f)) {
        hold(line[0] == '"' && nwords < MAIN_MOST);
        word = &words[nwords++];

        for (p = line + 1; *p != '"'; p++) {
            byte = *p;

            if (*p == '\\' && *++p == 'x') {
                hold(sscanf(p + 1, "%2x", &byte) == 1);
                p += 2;

            } else {
                byte = *p;
            }

            word->data[word->len++] = (u_char) byte;
        }
    }

    fclose(f);
}


/* puts these bytes in the place of n others */

static void
main_splice(input_t *in, size_t at, size_t n, u_char *data, size_t len)
{
    if (in->len - n + len > MAIN_LEN) {
        return;
    }

    ngx_memmove(in->data + at + len, in->data + at + n, in->len - at - n);
    ngx_memcpy(in->data + at, data, len);
    in->len += len - n;
}


static void
main_change(input_t *in)
{
    size_t    at, n;
    u_char    bytes[8];
    input_t  *from;

    static u_char  odd[] = { 0, 1, 0x7f, 0x80, 0xff, '\r', '\n', ' ', '0', '"' };

    at = fuzz_below(&seed, in->len + 1);
    n = fuzz_below(&seed, 8);
    n = ngx_min(n, in->len - at);

    switch (fuzz_below(&seed, 7)) {

    case 0:
        bytes[0] = (u_char) fuzz_below(&seed, 256);
        main_splice(in, at, ngx_min(n, 1), bytes, 1);
        break;

    case 1:
        bytes[0] = odd[fuzz_below(&seed, sizeof(odd))];
        main_splice(in, at, ngx_min(n, 1), bytes, 1);
        break;

    case 2:
        if (at < in->len) {
            in->data[at] ^= 1 << fuzz_below(&seed, 8);
        }

        break;

    case 3:
        main_splice(in, at, n, NULL, 0);
        break;

    case 4:
        ngx_memcpy(bytes, in->data + at, n);
        main_splice(in, at, 0, bytes, n);
        break;

    case 5:
        from = &words[fuzz_below(&seed, nwords)];
        main_splice(in, at, fuzz_below(&seed, 2) ? 0
                            : ngx_min(from->len, in->len - at),
                    from->data, from->len);
        break;

    case 6:
        from = &corpus[fuzz_below(&seed, ninputs)];
        n = fuzz_below(&seed, from->len + 1);
        main_splice(in, at, in->len - at, from->data + n, from->len - n);
        break;
    }
}


/* in memory of its own size, so that a read beyond it is seen */

static void
main_once(input_t *in)
{
    u_char  *data;

    data = malloc(ngx_max(in->len, 1));
    ngx_memcpy(data, in->data, in->len);

    (void) LLVMFuzzerTestOneInput(data, in->len);

    free(data);
}


static void
main_run(input_t *in)
{
    size_t      before, after;
    ngx_uint_t  n;

    rewind(finding);
    hold(fwrite(in->data, 1, in->len, finding) == in->len
         && fflush(finding) == 0
         && ftruncate(fileno(finding), in->len) == 0);

    after = __sanitizer_get_current_allocated_bytes();

    for (n = 0; n < MAIN_GROWS; n++) {
        before = after;
        main_once(in);
        after = __sanitizer_get_current_allocated_bytes();

        if (after <= before) {
            return;
        }
    }

    hold(!"all memory is freed");
}


int
main(int argc, char **argv)
{
    char        pattern[NGX_MAX_PATH];
    glob_t      files;
    input_t     in;
    ngx_uint_t  i, n, runs;

    hold(argc == 5);

    snprintf(pattern, sizeof(pattern), "%s/*", argv[1]);
    hold(glob(pattern, 0, NULL, &files) == 0);

    for (i = 0; i < files.gl_pathc; i++) {
        main_read(files.gl_pathv[i]);
    }

    globfree(&files);

    main_dictionary(argv[2]);
    hold(ninputs && nwords);

    runs = atoi(argv[3]);
    finding = fopen(argv[4], "w");
    hold(runs && finding);

    for (i = 0; i < ninputs; i++) {
        main_run(&corpus[i]);
    }

    for (i = 0; i < runs; i++) {
        in = corpus[fuzz_below(&seed, ninputs)];

        for (n = 1 + fuzz_below(&seed, 6); n; n--) {
            main_change(&in);
        }

        main_run(&in);
    }

    fclose(finding);
    hold(unlink(argv[4]) == 0);

    return 0;
}
