/* Pre-tokenizers: split a text into words. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include <pcre2.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/text.h"
#include "text/internal.h"

/* ---- The byte alphabet of byte-level BPE ---- */

/* Printable Latin-1 characters are themselves, U+0100 and on the other bytes in order: 0 to 32, 127
 * to 160 and 173. */
static bool is_printable(uint32_t byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* The byte of a character, or -1. */
static int byte_of(uint32_t c)
{
    if (c <= 255)
        return is_printable(c) ? (int)c : -1;
    uint32_t i = c - 0x100;
    if (i > 67)
        return -1;
    return i <= 32 ? (int)i : i <= 66 ? (int)i + 94 : 173;
}

static uint32_t character_of(uint8_t byte)
{
    if (is_printable(byte))
        return byte;
    return 0x100u + (byte <= 32 ? byte : byte <= 160 ? byte - 94u : 67u);
}

/* Appends n bytes as characters: UTF-8, at most twice as long. */
static void alphabet_write(const char *text, uint64_t n, struct moe_buf *out)
{
    uint8_t bytes[4];
    for (uint64_t i = 0; i < n; i++)
        moe_buf_append(out, bytes,
                       (uint64_t)moe_utf8_encode(character_of((uint8_t)text[i]), bytes));
}

bool moe_alphabet_read(const char *text, uint64_t n, struct moe_buf *out)
{
    uint8_t *to = n ? moe_buf_reserve(out, n) : NULL;
    uint64_t n_bytes = 0;
    int length = 1;
    for (uint64_t at = 0; at < n && to; at += (uint64_t)length) {
        const bool ascii = text[at] > 32 && text[at] < 127; /* which is itself */
        length = 1;
        int byte = ascii ? text[at]
                         : byte_of(moe_utf8_decode((const uint8_t *)text + at, n - at, &length));
        if (byte < 0)
            return false;
        to[n_bytes++] = (uint8_t)byte;
    }
    if (to)
        to[n_bytes] = '\0'; /* there is room for it */
    out->size += n_bytes;
    return true;
}

/*
 * Unicode 9.0's property Script, as the pre-tokenizer UnicodeScripts of huggingface/tokenizers has
 * it: hiragana and katakana count as Han, and so does U+30FC; the space and characters unknown to
 * Unicode 9.0 have no script.
 */

/* Starts of runs of characters of one script, with the script's number (0: none) in the lowest
 * byte; sorted. */
static const uint32_t RUNS[] = {
    0x00000018, 0x00002000, 0x00002118, 0x0000413c, 0x00005b18, 0x0000613c, 0x00007b18, 0x0000aa3c,
    0x0000ab18, 0x0000ba3c, 0x0000bb18, 0x0000c03c, 0x0000d718, 0x0000d83c, 0x0000f718, 0x0000f83c,
    0x0002b918, 0x0002e03c, 0x0002e518, 0x0002ea0d, 0x0002ec18, 0x00030030, 0x00037027, 0x00037418,
    0x00037527, 0x00037800, 0x00037a27, 0x00037e18, 0x00037f27, 0x00038000, 0x00038427, 0x00038518,
    0x00038627, 0x00038718, 0x00038827, 0x00038b00, 0x00038c27, 0x00038d00, 0x00038e27, 0x0003a200,
    0x0003a327, 0x0003e219, 0x0003f027, 0x0004001c, 0x00048530, 0x0004871c, 0x00053000, 0x00053105,
    0x00055700, 0x00055905, 0x00056000, 0x00056105, 0x00058800, 0x00058918, 0x00058a05, 0x00058b00,
    0x00058d05, 0x00059000, 0x0005912e, 0x0005c800, 0x0005d02e, 0x0005eb00, 0x0005f02e, 0x0005f500,
    0x00060004, 0x00060518, 0x00060604, 0x00060c18, 0x00060d04, 0x00061b18, 0x00061d00, 0x00061e04,
    0x00061f18, 0x00062004, 0x00064018, 0x00064104, 0x00064b30, 0x00065604, 0x00067030, 0x00067104,
    0x0006dd18, 0x0006de04, 0x00070075, 0x00070e00, 0x00070f75, 0x00074b00, 0x00074d75, 0x00075004,
    0x0007807f, 0x0007b200, 0x0007c056, 0x0007fb00, 0x0008006b, 0x00082e00, 0x0008306b, 0x00083f00,
    0x00084046, 0x00085c00, 0x00085e46, 0x00085f00, 0x0008a004, 0x0008b500, 0x0008b604, 0x0008be00,
    0x0008d404, 0x0008e218, 0x0008e304, 0x0009001e, 0x00095130, 0x0009531e, 0x00096418, 0x0009661e,
    0x0009800b, 0x00098400, 0x0009850b, 0x00098d00, 0x00098f0b, 0x00099100, 0x0009930b, 0x0009a900,
    0x0009aa0b, 0x0009b100, 0x0009b20b, 0x0009b300, 0x0009b60b, 0x0009ba00, 0x0009bc0b, 0x0009c500,
    0x0009c70b, 0x0009c900, 0x0009cb0b, 0x0009cf00, 0x0009d70b, 0x0009d800, 0x0009dc0b, 0x0009de00,
    0x0009df0b, 0x0009e400, 0x0009e60b, 0x0009fc00, 0x000a0129, 0x000a0400, 0x000a0529, 0x000a0b00,
    0x000a0f29, 0x000a1100, 0x000a1329, 0x000a2900, 0x000a2a29, 0x000a3100, 0x000a3229, 0x000a3400,
    0x000a3529, 0x000a3700, 0x000a3829, 0x000a3a00, 0x000a3c29, 0x000a3d00, 0x000a3e29, 0x000a4300,
    0x000a4729, 0x000a4900, 0x000a4b29, 0x000a4e00, 0x000a5129, 0x000a5200, 0x000a5929, 0x000a5d00,
    0x000a5e29, 0x000a5f00, 0x000a6629, 0x000a7600, 0x000a8128, 0x000a8400, 0x000a8528, 0x000a8e00,
    0x000a8f28, 0x000a9200, 0x000a9328, 0x000aa900, 0x000aaa28, 0x000ab100, 0x000ab228, 0x000ab400,
    0x000ab528, 0x000aba00, 0x000abc28, 0x000ac600, 0x000ac728, 0x000aca00, 0x000acb28, 0x000ace00,
    0x000ad028, 0x000ad100, 0x000ae028, 0x000ae400, 0x000ae628, 0x000af200, 0x000af928, 0x000afa00,
    0x000b0160, 0x000b0400, 0x000b0560, 0x000b0d00, 0x000b0f60, 0x000b1100, 0x000b1360, 0x000b2900,
    0x000b2a60, 0x000b3100, 0x000b3260, 0x000b3400, 0x000b3560, 0x000b3a00, 0x000b3c60, 0x000b4500,
    0x000b4760, 0x000b4900, 0x000b4b60, 0x000b4e00, 0x000b5660, 0x000b5800, 0x000b5c60, 0x000b5e00,
    0x000b5f60, 0x000b6400, 0x000b6660, 0x000b7800, 0x000b827c, 0x000b8400, 0x000b857c, 0x000b8b00,
    0x000b8e7c, 0x000b9100, 0x000b927c, 0x000b9600, 0x000b997c, 0x000b9b00, 0x000b9c7c, 0x000b9d00,
    0x000b9e7c, 0x000ba000, 0x000ba37c, 0x000ba500, 0x000ba87c, 0x000bab00, 0x000bae7c, 0x000bba00,
    0x000bbe7c, 0x000bc300, 0x000bc67c, 0x000bc900, 0x000bca7c, 0x000bce00, 0x000bd07c, 0x000bd100,
    0x000bd77c, 0x000bd800, 0x000be67c, 0x000bfb00, 0x000c007e, 0x000c0400, 0x000c057e, 0x000c0d00,
    0x000c0e7e, 0x000c1100, 0x000c127e, 0x000c2900, 0x000c2a7e, 0x000c3a00, 0x000c3d7e, 0x000c4500,
    0x000c467e, 0x000c4900, 0x000c4a7e, 0x000c4e00, 0x000c557e, 0x000c5700, 0x000c587e, 0x000c5b00,
    0x000c607e, 0x000c6400, 0x000c667e, 0x000c7000, 0x000c787e, 0x000c8035, 0x000c8400, 0x000c8535,
    0x000c8d00, 0x000c8e35, 0x000c9100, 0x000c9235, 0x000ca900, 0x000caa35, 0x000cb400, 0x000cb535,
    0x000cba00, 0x000cbc35, 0x000cc500, 0x000cc635, 0x000cc900, 0x000cca35, 0x000cce00, 0x000cd535,
    0x000cd700, 0x000cde35, 0x000cdf00, 0x000ce035, 0x000ce400, 0x000ce635, 0x000cf000, 0x000cf135,
    0x000cf300, 0x000d0145, 0x000d0400, 0x000d0545, 0x000d0d00, 0x000d0e45, 0x000d1100, 0x000d1245,
    0x000d3b00, 0x000d3d45, 0x000d4500, 0x000d4645, 0x000d4900, 0x000d4a45, 0x000d5000, 0x000d5445,
    0x000d6400, 0x000d6645, 0x000d8000, 0x000d8271, 0x000d8400, 0x000d8571, 0x000d9700, 0x000d9a71,
    0x000db200, 0x000db371, 0x000dbc00, 0x000dbd71, 0x000dbe00, 0x000dc071, 0x000dc700, 0x000dca71,
    0x000dcb00, 0x000dcf71, 0x000dd500, 0x000dd671, 0x000dd700, 0x000dd871, 0x000de000, 0x000de671,
    0x000df000, 0x000df271, 0x000df500, 0x000e0180, 0x000e3b00, 0x000e3f18, 0x000e4080, 0x000e5c00,
    0x000e813b, 0x000e8300, 0x000e843b, 0x000e8500, 0x000e873b, 0x000e8900, 0x000e8a3b, 0x000e8b00,
    0x000e8d3b, 0x000e8e00, 0x000e943b, 0x000e9800, 0x000e993b, 0x000ea000, 0x000ea13b, 0x000ea400,
    0x000ea53b, 0x000ea600, 0x000ea73b, 0x000ea800, 0x000eaa3b, 0x000eac00, 0x000ead3b, 0x000eba00,
    0x000ebb3b, 0x000ebe00, 0x000ec03b, 0x000ec500, 0x000ec63b, 0x000ec700, 0x000ec83b, 0x000ece00,
    0x000ed03b, 0x000eda00, 0x000edc3b, 0x000ee000, 0x000f0081, 0x000f4800, 0x000f4981, 0x000f6d00,
    0x000f7181, 0x000f9800, 0x000f9981, 0x000fbd00, 0x000fbe81, 0x000fcd00, 0x000fce81, 0x000fd518,
    0x000fd981, 0x000fdb00, 0x00100052, 0x0010a023, 0x0010c600, 0x0010c723, 0x0010c800, 0x0010cd23,
    0x0010ce00, 0x0010d023, 0x0010fb18, 0x0010fc23, 0x0011002b, 0x00120022, 0x00124900, 0x00124a22,
    0x00124e00, 0x00125022, 0x00125700, 0x00125822, 0x00125900, 0x00125a22, 0x00125e00, 0x00126022,
    0x00128900, 0x00128a22, 0x00128e00, 0x00129022, 0x0012b100, 0x0012b222, 0x0012b600, 0x0012b822,
    0x0012bf00, 0x0012c022, 0x0012c100, 0x0012c222, 0x0012c600, 0x0012c822, 0x0012d700, 0x0012d822,
    0x00131100, 0x00131222, 0x00131600, 0x00131822, 0x00135b00, 0x00135d22, 0x00137d00, 0x00138022,
    0x00139a00, 0x0013a017, 0x0013f600, 0x0013f817, 0x0013fe00, 0x00140012, 0x00168057, 0x00169d00,
    0x0016a06a, 0x0016eb18, 0x0016ee6a, 0x0016f900, 0x00170076, 0x00170d00, 0x00170e76, 0x00171500,
    0x0017202c, 0x00173518, 0x00173700, 0x00174011, 0x00175400, 0x00176077, 0x00176d00, 0x00176e77,
    0x00177100, 0x00177277, 0x00177400, 0x00178038, 0x0017de00, 0x0017e038, 0x0017ea00, 0x0017f038,
    0x0017fa00, 0x0018004f, 0x00180218, 0x0018044f, 0x00180518, 0x0018064f, 0x00180f00, 0x0018104f,
    0x00181a00, 0x0018204f, 0x00187800, 0x0018804f, 0x0018ab00, 0x0018b012, 0x0018f600, 0x0019003e,
    0x00191f00, 0x0019203e, 0x00192c00, 0x0019303e, 0x00193c00, 0x0019403e, 0x00194100, 0x0019443e,
    0x00195078, 0x00196e00, 0x00197078, 0x00197500, 0x00198054, 0x0019ac00, 0x0019b054, 0x0019ca00,
    0x0019d054, 0x0019db00, 0x0019de54, 0x0019e038, 0x001a0010, 0x001a1c00, 0x001a1e10, 0x001a2079,
    0x001a5f00, 0x001a6079, 0x001a7d00, 0x001a7f79, 0x001a8a00, 0x001a9079, 0x001a9a00, 0x001aa079,
    0x001aae00, 0x001ab030, 0x001abf00, 0x001b0007, 0x001b4c00, 0x001b5007, 0x001b7d00, 0x001b8073,
    0x001bc00a, 0x001bf400, 0x001bfc0a, 0x001c003d, 0x001c3800, 0x001c3b3d, 0x001c4a00, 0x001c4d3d,
    0x001c5058, 0x001c801c, 0x001c8900, 0x001cc073, 0x001cc800, 0x001cd030, 0x001cd318, 0x001cd430,
    0x001ce118, 0x001ce230, 0x001ce918, 0x001ced30, 0x001cee18, 0x001cf430, 0x001cf518, 0x001cf700,
    0x001cf830, 0x001cfa00, 0x001d003c, 0x001d2627, 0x001d2b1c, 0x001d2c3c, 0x001d5d27, 0x001d623c,
    0x001d6627, 0x001d6b3c, 0x001d781c, 0x001d793c, 0x001dbf27, 0x001dc030, 0x001df600, 0x001dfb30,
    0x001e003c, 0x001f0027, 0x001f1600, 0x001f1827, 0x001f1e00, 0x001f2027, 0x001f4600, 0x001f4827,
    0x001f4e00, 0x001f5027, 0x001f5800, 0x001f5927, 0x001f5a00, 0x001f5b27, 0x001f5c00, 0x001f5d27,
    0x001f5e00, 0x001f5f27, 0x001f7e00, 0x001f8027, 0x001fb500, 0x001fb627, 0x001fc500, 0x001fc627,
    0x001fd400, 0x001fd627, 0x001fdc00, 0x001fdd27, 0x001ff000, 0x001ff227, 0x001ff500, 0x001ff627,
    0x001fff00, 0x00200018, 0x00200c30, 0x00200e18, 0x00206500, 0x00206618, 0x0020713c, 0x00207200,
    0x00207418, 0x00207f3c, 0x00208018, 0x00208f00, 0x0020903c, 0x00209d00, 0x0020a018, 0x0020bf00,
    0x0020d030, 0x0020f100, 0x00210018, 0x00212627, 0x00212718, 0x00212a3c, 0x00212c18, 0x0021323c,
    0x00213318, 0x00214e3c, 0x00214f18, 0x0021603c, 0x00218918, 0x00218c00, 0x00219018, 0x0023ff00,
    0x00240018, 0x00242700, 0x00244018, 0x00244b00, 0x00246018, 0x0028000f, 0x00290018, 0x002b7400,
    0x002b7618, 0x002b9600, 0x002b9818, 0x002bba00, 0x002bbd18, 0x002bc900, 0x002bca18, 0x002bd200,
    0x002bec18, 0x002bf000, 0x002c0024, 0x002c2f00, 0x002c3024, 0x002c5f00, 0x002c603c, 0x002c8019,
    0x002cf400, 0x002cf919, 0x002d0023, 0x002d2600, 0x002d2723, 0x002d2800, 0x002d2d23, 0x002d2e00,
    0x002d3082, 0x002d6800, 0x002d6f82, 0x002d7100, 0x002d7f82, 0x002d8022, 0x002d9700, 0x002da022,
    0x002da700, 0x002da822, 0x002daf00, 0x002db022, 0x002db700, 0x002db822, 0x002dbf00, 0x002dc022,
    0x002dc700, 0x002dc822, 0x002dcf00, 0x002dd022, 0x002dd700, 0x002dd822, 0x002ddf00, 0x002de01c,
    0x002e0018, 0x002e4500, 0x002e802a, 0x002e9a00, 0x002e9b2a, 0x002ef400, 0x002f002a, 0x002fd600,
    0x002ff018, 0x002ffc00, 0x00300018, 0x0030052a, 0x00300618, 0x0030072a, 0x00300818, 0x0030212a,
    0x00302a30, 0x00302e2b, 0x00303018, 0x0030382a, 0x00303c18, 0x00304000, 0x0030412a, 0x00309700,
    0x00309930, 0x00309b18, 0x00309d2a, 0x0030a018, 0x0030a12a, 0x0030fb18, 0x0030fc2a, 0x00310000,
    0x0031050d, 0x00312e00, 0x0031312b, 0x00318f00, 0x00319018, 0x0031a00d, 0x0031bb00, 0x0031c018,
    0x0031e400, 0x0031f02a, 0x0032002b, 0x00321f00, 0x00322018, 0x0032602b, 0x00327f18, 0x0032d02a,
    0x0032ff00, 0x0033002a, 0x00335818, 0x0034002a, 0x004db600, 0x004dc018, 0x004e002a, 0x009fd600,
    0x00a00087, 0x00a48d00, 0x00a49087, 0x00a4c700, 0x00a4d041, 0x00a50085, 0x00a62c00, 0x00a6401c,
    0x00a6a008, 0x00a6f800, 0x00a70018, 0x00a7223c, 0x00a78818, 0x00a78b3c, 0x00a7af00, 0x00a7b03c,
    0x00a7b800, 0x00a7f73c, 0x00a80074, 0x00a82c00, 0x00a83018, 0x00a83a00, 0x00a84066, 0x00a87800,
    0x00a8806c, 0x00a8c600, 0x00a8ce6c, 0x00a8da00, 0x00a8e01e, 0x00a8fe00, 0x00a90036, 0x00a92e18,
    0x00a92f36, 0x00a93069, 0x00a95400, 0x00a95f69, 0x00a9602b, 0x00a97d00, 0x00a98033, 0x00a9ce00,
    0x00a9cf18, 0x00a9d033, 0x00a9da00, 0x00a9de33, 0x00a9e052, 0x00a9ff00, 0x00aa0016, 0x00aa3700,
    0x00aa4016, 0x00aa4e00, 0x00aa5016, 0x00aa5a00, 0x00aa5c16, 0x00aa6052, 0x00aa807a, 0x00aac300,
    0x00aadb7a, 0x00aae049, 0x00aaf700, 0x00ab0122, 0x00ab0700, 0x00ab0922, 0x00ab0f00, 0x00ab1122,
    0x00ab1700, 0x00ab2022, 0x00ab2700, 0x00ab2822, 0x00ab2f00, 0x00ab303c, 0x00ab5b18, 0x00ab5c3c,
    0x00ab6527, 0x00ab6600, 0x00ab7017, 0x00abc049, 0x00abee00, 0x00abf049, 0x00abfa00, 0x00ac002b,
    0x00d7a400, 0x00d7b02b, 0x00d7c700, 0x00d7cb2b, 0x00d7fc00, 0x00f9002a, 0x00fa6e00, 0x00fa702a,
    0x00fada00, 0x00fb003c, 0x00fb0700, 0x00fb1305, 0x00fb1800, 0x00fb1d2e, 0x00fb3700, 0x00fb382e,
    0x00fb3d00, 0x00fb3e2e, 0x00fb3f00, 0x00fb402e, 0x00fb4200, 0x00fb432e, 0x00fb4500, 0x00fb462e,
    0x00fb5004, 0x00fbc200, 0x00fbd304, 0x00fd3e18, 0x00fd4000, 0x00fd5004, 0x00fd9000, 0x00fd9204,
    0x00fdc800, 0x00fdf004, 0x00fdfe00, 0x00fe0030, 0x00fe1018, 0x00fe1a00, 0x00fe2030, 0x00fe2e1c,
    0x00fe3018, 0x00fe5300, 0x00fe5418, 0x00fe6700, 0x00fe6818, 0x00fe6c00, 0x00fe7004, 0x00fe7500,
    0x00fe7604, 0x00fefd00, 0x00feff18, 0x00ff0000, 0x00ff0118, 0x00ff213c, 0x00ff3b18, 0x00ff413c,
    0x00ff5b18, 0x00ff662a, 0x00ff7018, 0x00ff712a, 0x00ff9e18, 0x00ffa02b, 0x00ffbf00, 0x00ffc22b,
    0x00ffc800, 0x00ffca2b, 0x00ffd000, 0x00ffd22b, 0x00ffd800, 0x00ffda2b, 0x00ffdd00, 0x00ffe018,
    0x00ffe700, 0x00ffe818, 0x00ffef00, 0x00fff918, 0x00fffe00, 0x01000040, 0x01000c00, 0x01000d40,
    0x01002700, 0x01002840, 0x01003b00, 0x01003c40, 0x01003e00, 0x01003f40, 0x01004e00, 0x01005040,
    0x01005e00, 0x01008040, 0x0100fb00, 0x01010018, 0x01010300, 0x01010718, 0x01013400, 0x01013718,
    0x01014027, 0x01018f00, 0x01019018, 0x01019c00, 0x0101a027, 0x0101a100, 0x0101d018, 0x0101fd30,
    0x0101fe00, 0x01028042, 0x01029d00, 0x0102a013, 0x0102d100, 0x0102e030, 0x0102e118, 0x0102fc00,
    0x0103005a, 0x01032400, 0x01033025, 0x01034b00, 0x0103505c, 0x01037b00, 0x01038084, 0x01039e00,
    0x01039f84, 0x0103a05d, 0x0103c400, 0x0103c85d, 0x0103d600, 0x0104001d, 0x0104506e, 0x01048062,
    0x01049e00, 0x0104a062, 0x0104aa00, 0x0104b061, 0x0104d400, 0x0104d861, 0x0104fc00, 0x01050021,
    0x01052800, 0x01053014, 0x01056400, 0x01056f14, 0x01057000, 0x0106003f, 0x01073700, 0x0107403f,
    0x01075600, 0x0107603f, 0x01076800, 0x0108001b, 0x01080600, 0x0108081b, 0x01080900, 0x01080a1b,
    0x01083600, 0x0108371b, 0x01083900, 0x01083c1b, 0x01083d00, 0x01083f1b, 0x0108402f, 0x01085600,
    0x0108572f, 0x01086064, 0x01088053, 0x01089f00, 0x0108a753, 0x0108b000, 0x0108e02d, 0x0108f300,
    0x0108f42d, 0x0108f600, 0x0108fb2d, 0x01090067, 0x01091c00, 0x01091f67, 0x01092043, 0x01093a00,
    0x01093f43, 0x01094000, 0x0109804c, 0x0109a04b, 0x0109b800, 0x0109bc4b, 0x0109d000, 0x0109d24b,
    0x010a0037, 0x010a0400, 0x010a0537, 0x010a0700, 0x010a0c37, 0x010a1400, 0x010a1537, 0x010a1800,
    0x010a1937, 0x010a3400, 0x010a3837, 0x010a3b00, 0x010a3f37, 0x010a4800, 0x010a5037, 0x010a5900,
    0x010a605e, 0x010a805b, 0x010aa000, 0x010ac047, 0x010ae700, 0x010aeb47, 0x010af700, 0x010b0006,
    0x010b3600, 0x010b3906, 0x010b4032, 0x010b5600, 0x010b5832, 0x010b6031, 0x010b7300, 0x010b7831,
    0x010b8068, 0x010b9200, 0x010b9968, 0x010b9d00, 0x010ba968, 0x010bb000, 0x010c005f, 0x010c4900,
    0x010c8059, 0x010cb300, 0x010cc059, 0x010cf300, 0x010cfa59, 0x010d0000, 0x010e6004, 0x010e7f00,
    0x0110000e, 0x01104e00, 0x0110520e, 0x01107000, 0x01107f0e, 0x01108034, 0x0110c200, 0x0110d072,
    0x0110e900, 0x0110f072, 0x0110fa00, 0x01110015, 0x01113500, 0x01113615, 0x01114400, 0x01115044,
    0x01117700, 0x0111806d, 0x0111ce00, 0x0111d06d, 0x0111e000, 0x0111e171, 0x0111f500, 0x01120039,
    0x01121200, 0x01121339, 0x01123f00, 0x01128051, 0x01128700, 0x01128851, 0x01128900, 0x01128a51,
    0x01128e00, 0x01128f51, 0x01129e00, 0x01129f51, 0x0112aa00, 0x0112b03a, 0x0112eb00, 0x0112f03a,
    0x0112fa00, 0x01130026, 0x01130400, 0x01130526, 0x01130d00, 0x01130f26, 0x01131100, 0x01131326,
    0x01132900, 0x01132a26, 0x01133100, 0x01133226, 0x01133400, 0x01133526, 0x01133a00, 0x01133c26,
    0x01134500, 0x01134726, 0x01134900, 0x01134b26, 0x01134e00, 0x01135026, 0x01135100, 0x01135726,
    0x01135800, 0x01135d26, 0x01136400, 0x01136626, 0x01136d00, 0x01137026, 0x01137500, 0x01140055,
    0x01145a00, 0x01145b55, 0x01145c00, 0x01145d55, 0x01145e00, 0x01148083, 0x0114c800, 0x0114d083,
    0x0114da00, 0x0115806f, 0x0115b600, 0x0115b86f, 0x0115de00, 0x0116004e, 0x01164500, 0x0116504e,
    0x01165a00, 0x0116604f, 0x01166d00, 0x0116807b, 0x0116b800, 0x0116c07b, 0x0116ca00, 0x01170002,
    0x01171a00, 0x01171d02, 0x01172c00, 0x01173002, 0x01174000, 0x0118a086, 0x0118f300, 0x0118ff86,
    0x01190000, 0x011ac065, 0x011af900, 0x011c000c, 0x011c0900, 0x011c0a0c, 0x011c3700, 0x011c380c,
    0x011c4600, 0x011c500c, 0x011c6d00, 0x011c7048, 0x011c9000, 0x011c9248, 0x011ca800, 0x011ca948,
    0x011cb700, 0x0120001a, 0x01239a00, 0x0124001a, 0x01246f00, 0x0124701a, 0x01247500, 0x0124801a,
    0x01254400, 0x01300020, 0x01342f00, 0x01440003, 0x01464700, 0x01680008, 0x016a3900, 0x016a4050,
    0x016a5f00, 0x016a6050, 0x016a6a00, 0x016a6e50, 0x016a7000, 0x016ad009, 0x016aee00, 0x016af009,
    0x016af600, 0x016b0063, 0x016b4600, 0x016b5063, 0x016b5a00, 0x016b5b63, 0x016b6200, 0x016b6363,
    0x016b7800, 0x016b7d63, 0x016b9000, 0x016f004d, 0x016f4500, 0x016f504d, 0x016f7f00, 0x016f8f4d,
    0x016fa000, 0x016fe07d, 0x016fe100, 0x0170007d, 0x0187ed00, 0x0188007d, 0x018af300, 0x01b0002a,
    0x01b00200, 0x01bc001f, 0x01bc6b00, 0x01bc701f, 0x01bc7d00, 0x01bc801f, 0x01bc8900, 0x01bc901f,
    0x01bc9a00, 0x01bc9c1f, 0x01bca018, 0x01bca400, 0x01d00018, 0x01d0f600, 0x01d10018, 0x01d12700,
    0x01d12918, 0x01d16730, 0x01d16a18, 0x01d17b30, 0x01d18318, 0x01d18530, 0x01d18c18, 0x01d1aa30,
    0x01d1ae18, 0x01d1e900, 0x01d20027, 0x01d24600, 0x01d30018, 0x01d35700, 0x01d36018, 0x01d37200,
    0x01d40018, 0x01d45500, 0x01d45618, 0x01d49d00, 0x01d49e18, 0x01d4a000, 0x01d4a218, 0x01d4a300,
    0x01d4a518, 0x01d4a700, 0x01d4a918, 0x01d4ad00, 0x01d4ae18, 0x01d4ba00, 0x01d4bb18, 0x01d4bc00,
    0x01d4bd18, 0x01d4c400, 0x01d4c518, 0x01d50600, 0x01d50718, 0x01d50b00, 0x01d50d18, 0x01d51500,
    0x01d51618, 0x01d51d00, 0x01d51e18, 0x01d53a00, 0x01d53b18, 0x01d53f00, 0x01d54018, 0x01d54500,
    0x01d54618, 0x01d54700, 0x01d54a18, 0x01d55100, 0x01d55218, 0x01d6a600, 0x01d6a818, 0x01d7cc00,
    0x01d7ce18, 0x01d80070, 0x01da8c00, 0x01da9b70, 0x01daa000, 0x01daa170, 0x01dab000, 0x01e00024,
    0x01e00700, 0x01e00824, 0x01e01900, 0x01e01b24, 0x01e02200, 0x01e02324, 0x01e02500, 0x01e02624,
    0x01e02b00, 0x01e8004a, 0x01e8c500, 0x01e8c74a, 0x01e8d700, 0x01e90001, 0x01e94b00, 0x01e95001,
    0x01e95a00, 0x01e95e01, 0x01e96000, 0x01ee0004, 0x01ee0400, 0x01ee0504, 0x01ee2000, 0x01ee2104,
    0x01ee2300, 0x01ee2404, 0x01ee2500, 0x01ee2704, 0x01ee2800, 0x01ee2904, 0x01ee3300, 0x01ee3404,
    0x01ee3800, 0x01ee3904, 0x01ee3a00, 0x01ee3b04, 0x01ee3c00, 0x01ee4204, 0x01ee4300, 0x01ee4704,
    0x01ee4800, 0x01ee4904, 0x01ee4a00, 0x01ee4b04, 0x01ee4c00, 0x01ee4d04, 0x01ee5000, 0x01ee5104,
    0x01ee5300, 0x01ee5404, 0x01ee5500, 0x01ee5704, 0x01ee5800, 0x01ee5904, 0x01ee5a00, 0x01ee5b04,
    0x01ee5c00, 0x01ee5d04, 0x01ee5e00, 0x01ee5f04, 0x01ee6000, 0x01ee6104, 0x01ee6300, 0x01ee6404,
    0x01ee6500, 0x01ee6704, 0x01ee6b00, 0x01ee6c04, 0x01ee7300, 0x01ee7404, 0x01ee7800, 0x01ee7904,
    0x01ee7d00, 0x01ee7e04, 0x01ee7f00, 0x01ee8004, 0x01ee8a00, 0x01ee8b04, 0x01ee9c00, 0x01eea104,
    0x01eea400, 0x01eea504, 0x01eeaa00, 0x01eeab04, 0x01eebc00, 0x01eef004, 0x01eef200, 0x01f00018,
    0x01f02c00, 0x01f03018, 0x01f09400, 0x01f0a018, 0x01f0af00, 0x01f0b118, 0x01f0c000, 0x01f0c118,
    0x01f0d000, 0x01f0d118, 0x01f0f600, 0x01f10018, 0x01f10d00, 0x01f11018, 0x01f12f00, 0x01f13018,
    0x01f16c00, 0x01f17018, 0x01f1ad00, 0x01f1e618, 0x01f2002a, 0x01f20118, 0x01f20300, 0x01f21018,
    0x01f23c00, 0x01f24018, 0x01f24900, 0x01f25018, 0x01f25200, 0x01f30018, 0x01f6d300, 0x01f6e018,
    0x01f6ed00, 0x01f6f018, 0x01f6f700, 0x01f70018, 0x01f77400, 0x01f78018, 0x01f7d500, 0x01f80018,
    0x01f80c00, 0x01f81018, 0x01f84800, 0x01f85018, 0x01f85a00, 0x01f86018, 0x01f88800, 0x01f89018,
    0x01f8ae00, 0x01f91018, 0x01f91f00, 0x01f92018, 0x01f92800, 0x01f93018, 0x01f93100, 0x01f93318,
    0x01f93f00, 0x01f94018, 0x01f94c00, 0x01f95018, 0x01f95f00, 0x01f98018, 0x01f99200, 0x01f9c018,
    0x01f9c100, 0x0200002a, 0x02a6d700, 0x02a7002a, 0x02b73500, 0x02b7402a, 0x02b81e00, 0x02b8202a,
    0x02cea200, 0x02f8002a, 0x02fa1e00, 0x0e000118, 0x0e000200, 0x0e002018, 0x0e008000, 0x0e010030,
    0x0e01f000,
};

/* The number of the character's script; 0: it goes with any. */
static uint8_t script_of(uint32_t c)
{
    size_t low = 0, high = sizeof RUNS / sizeof *RUNS; /* the run lies before `high` */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (RUNS[middle] >> 8 <= c)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? (uint8_t)RUNS[low - 1] : 0;
}

/* ---- The list of steps ---- */

struct moe_step *moe_steps_add(struct moe_steps *steps, uint8_t kind)
{
    if (steps->n == MOE_STEPS_MAX)
        return NULL;
    struct moe_step *step = &steps->steps[steps->n++];
    *step = (struct moe_step){.kind = kind};
    return step;
}

struct moe_step *moe_steps_add_split(struct moe_steps *steps, const char *pattern, uint8_t behavior,
                                     uint8_t flags)
{
    struct moe_step *step = moe_steps_add(steps, MOE_STEP_SPLIT);
    if (!step)
        return NULL;
    step->behavior = behavior;
    step->flags = flags;
    moe_buf_text(&step->text, pattern);
    return step;
}

void moe_steps_release(struct moe_steps *steps)
{
    for (uint32_t i = 0; i < steps->n; i++) {
        moe_buf_release(&steps->steps[i].text);
        moe_buf_release(&steps->steps[i].other);
        pcre2_code_free(steps->steps[i].code);
        pcre2_code_free(steps->steps[i].counted);
    }
    steps->n = 0;
}

static int compile_step(struct moe_step *step, struct moe_err *err)
{
    struct moe_buf pattern = {0};
    bool literal = step->flags & MOE_STEP_LITERAL;
    int status = MOE_OK, code = 0;
    PCRE2_SIZE offset = 0;
    pcre2_compile_context *context = NULL;
    const char *text = (const char *)step->text.data;

    if (literal)
        moe_buf_append(&pattern, text, step->text.size);
    else
        status = moe_pattern_translate(text, step->text.size, &pattern, err);
    if (status != MOE_OK)
        goto out;
    context = pcre2_compile_context_create(NULL);
    if (!context || pattern.failed) {
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory");
        goto out;
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    uint32_t options =
        literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    step->code =
        pcre2_compile(pattern.data, (PCRE2_SIZE)pattern.size, options, &code, &offset, context);
    if (step->code && !literal)
        step->counted =
            pcre2_compile(pattern.data, (PCRE2_SIZE)pattern.size,
                          options | PCRE2_ANCHORED | PCRE2_AUTO_CALLOUT, &code, &offset, context);
    if (!step->code || (!step->counted && !literal)) {
        if (code == PCRE2_ERROR_HEAP_FAILED) {
            status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: split pattern '%.100s'", text);
            goto out;
        }
        char why[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        status = moe_fail(err, MOE_ERR_UNSUPPORTED, "split pattern '%.100s': %s", text, why);
        goto out;
    }
    /* If the system forbids generated code, pcre2_match interprets. */
    pcre2_jit_compile(step->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    if (step->counted)
        pcre2_jit_compile(step->counted, PCRE2_JIT_COMPLETE);
out:
    pcre2_compile_context_free(context);
    moe_buf_release(&pattern);
    return status;
}

static int prepare_split(struct moe_step *step, struct moe_err *err)
{
    if (step->behavior > MOE_SPLIT_CONTIGUOUS ||
        step->flags & ~(unsigned)(MOE_STEP_INVERT | MOE_STEP_LITERAL))
        return moe_fail(err, MOE_ERR_FORMAT, "split step with behavior %u, flags %u",
                        step->behavior, step->flags);
    if (step->text.size == 0 || !moe_utf8_valid(step->text.data, step->text.size))
        return moe_fail(err, MOE_ERR_FORMAT, "split pattern is empty or not UTF-8");
    return compile_step(step, err);
}

static bool is_ascii(const char *text)
{
    while (*text && (uint8_t)*text < 0x80)
        text++;
    return *text == 0;
}

static int prepare_pairs(struct moe_step *step, uint32_t i, struct moe_err *err)
{
    const struct moe_buf *lists[] = {&step->text, &step->other};
    const char *from, *to;
    for (int j = 0; j < 2; j++) {
        uint64_t n_texts = 0;
        for (uint64_t at = 0; at < lists[j]->size; at++)
            n_texts += lists[j]->data[at] == 0;
        if (n_texts % 2 || (lists[j]->size && lists[j]->data[lists[j]->size - 1]))
            return moe_fail(err, MOE_ERR_FORMAT, "normalizer step %u has no pairs of texts", i);
    }
    for (uint64_t at = 0; moe_step_pair(&step->text, &at, &from, &to);)
        if (is_ascii(from) || !is_ascii(to))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "normalizer step %u replaces '%.40s' by '%.40s': only a text that is "
                            "not ASCII is replaced, by one that is",
                            i, from, to);
    return MOE_OK;
}

/* Texts inserted into a text must keep it UTF-8; the precompiled map guarantees that for its own.
 */
static int prepare_normalizer(struct moe_step *step, uint32_t i, struct moe_err *err)
{
    bool compiled = step->kind == MOE_STEP_PRECOMPILED;
    if ((!compiled && !moe_utf8_valid(step->text.data, step->text.size)) ||
        !moe_utf8_valid(step->other.data, step->other.size))
        return moe_fail(err, MOE_ERR_FORMAT, "normalizer step %u is not UTF-8", i);
    if ((step->kind == MOE_STEP_REPLACE || step->kind == MOE_STEP_REPLACE_RUNS) &&
        step->text.size == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "normalizer step %u replaces nothing", i);
    if (step->kind == MOE_STEP_REPLACE_MATCHES) {
        step->flags = 0;
        return prepare_split(step, err);
    }
    if (step->kind == MOE_STEP_REPLACE_PAIRS)
        return prepare_pairs(step, i, err);
    if (step->kind == MOE_STEP_BERT && step->flags != MOE_STEP_CLEAN &&
        step->flags != MOE_STEP_APART && step->flags != MOE_STEP_ACCENTS)
        return moe_fail(err, MOE_ERR_FORMAT, "normalizer step %u has flags %u", i, step->flags);
    return compiled ? moe_charsmap_open(&step->map, step->text.data, step->text.size, err) : MOE_OK;
}

int moe_steps_prepare(struct moe_steps *steps, bool normalizer, struct moe_err *err)
{
    bool spelled = false;
    int first = normalizer ? MOE_STEP_NFC : MOE_STEP_SPLIT;
    int last = normalizer ? MOE_STEP_BERT : MOE_STEP_ALPHABET;
    for (uint32_t i = 0; i < steps->n; i++) {
        struct moe_step *step = &steps->steps[i];
        if (step->kind < first || step->kind > last)
            return moe_fail(err, MOE_ERR_UNSUPPORTED, "unknown %s step %u",
                            normalizer ? "normalizer" : "pre-tokenizer", step->kind);
        if (spelled && step->kind != MOE_STEP_SPLIT && step->kind != MOE_STEP_SCRIPTS)
            return moe_fail(err, MOE_ERR_UNSUPPORTED, "step %u changes the bytes' alphabet", i);
        spelled = step->kind == MOE_STEP_ALPHABET || spelled;
        if (step->text.failed || step->other.failed)
            return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
        bool pairs = step->kind == MOE_STEP_REPLACE_PAIRS;
        uint64_t other = pairs ? MOE_STEP_PAIRS_MAX : MOE_STEP_TEXT_MAX;
        uint64_t most = step->kind == MOE_STEP_PRECOMPILED ? MOE_CHARSMAP_MAX : other;
        if (step->text.size > most || step->other.size > other)
            return moe_fail(err, MOE_ERR_FORMAT, "step %u has a text of impossible size", i);
        MOE_TRY(normalizer                     ? prepare_normalizer(step, i, err)
                : step->kind == MOE_STEP_SPLIT ? prepare_split(step, err)
                                               : MOE_OK);
    }
    return MOE_OK;
}

/* ---- Running ---- */

static int run_step(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                    bool at_start, struct moe_err *err);

/* Joins parts (matches and the text between them) according to the split's behavior. */
struct joiner {
    struct moe_pretokenizer *p;
    uint32_t i; /* the step */
    const char *text;
    bool at_start;
    uint64_t start, end; /* held back until the next part is known */
    bool is_match;       /* the last part held is a match */
};

static int pass_on(struct joiner *j, struct moe_err *err)
{
    uint64_t start = j->start;
    j->start = j->end;
    if (start == j->end)
        return MOE_OK;
    return run_step(j->p, j->i + 1, j->text + start, j->end - start, j->at_start && start == 0,
                    err);
}

static int add_part(struct joiner *j, uint64_t start, uint64_t end, bool is_match,
                    struct moe_err *err)
{
    const struct moe_step *step = &j->p->steps->steps[j->i];
    if (start == end)
        return MOE_OK;
    if (step->flags & MOE_STEP_INVERT)
        is_match = !is_match;
    bool holding = j->end > j->start, join = false;
    if (step->behavior == MOE_SPLIT_PREVIOUS)
        join = holding && is_match && !j->is_match;
    else if (step->behavior == MOE_SPLIT_NEXT)
        join = holding && !is_match && j->is_match;
    else if (step->behavior == MOE_SPLIT_CONTIGUOUS)
        join = holding && is_match == j->is_match;
    MOE_TRY(join ? MOE_OK : pass_on(j, err));
    if (!join)
        j->start = start;
    j->end = end;
    j->is_match = is_match;
    if (step->behavior == MOE_SPLIT_REMOVED && is_match)
        j->start = end;
    return MOE_OK;
}

static int run_split(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                     bool at_start, struct moe_err *err)
{
    struct joiner j = {.p = p, .i = i, .text = text, .at_start = at_start};
    uint64_t done = 0, from = 0;
    while (from < n) {
        uint64_t start = 0, end = 0;
        int found = moe_pretokenizer_find(p, i, text, n, from, &start, &end, err);
        if (found < 0)
            return found;
        if (!found)
            break;
        MOE_TRY(add_part(&j, done, start, false, err));
        MOE_TRY(add_part(&j, start, end, true, err));
        done = end;
        from = end;
        if (start == end && end < n) { /* an empty match: continue after the next character */
            int length;
            moe_utf8_decode((const uint8_t *)text + end, n - end, &length);
            from = end + (uint64_t)length;
        } else if (start == end) {
            break;
        }
    }
    MOE_TRY(add_part(&j, done, n, false, err));
    return pass_on(&j, err);
}

static int run_metaspace(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                         bool at_start, struct moe_err *err)
{
    uint8_t flags = p->steps->steps[i].flags;
    struct moe_buf out = {0};
    bool prepend = !(flags & MOE_STEP_PREPEND_NEVER) &&
                   (at_start || !(flags & MOE_STEP_PREPEND_FIRST)) && text[0] != ' ' &&
                   !(n >= 3 && memcmp(text, MOE_METASPACE, 3) == 0);
    if (prepend)
        moe_buf_text(&out, MOE_METASPACE);
    for (uint64_t at = 0; at < n;) {
        const char *space = memchr(text + at, ' ', n - at);
        uint64_t end = space ? (uint64_t)(space - text) : n;
        moe_buf_append(&out, text + at, end - at);
        if (space)
            moe_buf_text(&out, MOE_METASPACE);
        at = end + 1;
    }
    int status = out.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory")
                            : run_step(p, i + 1, (const char *)out.data, out.size, at_start, err);
    moe_buf_release(&out);
    return status;
}

static int run_prefix_space(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                            bool at_start, struct moe_err *err)
{
    if (text[0] == ' ')
        return run_step(p, i + 1, text, n, at_start, err);
    struct moe_buf out = {0};
    moe_buf_u8(&out, ' ');
    moe_buf_append(&out, text, n);
    int status = out.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory")
                            : run_step(p, i + 1, (const char *)out.data, out.size, at_start, err);
    moe_buf_release(&out);
    return status;
}

/* Characters without a script go with those before; before the first script they are dropped, as in
 * huggingface/tokenizers. */
static int run_scripts(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                       bool at_start, struct moe_err *err)
{
    uint64_t start = n;
    uint8_t script = 0;
    int length;
    for (uint64_t at = 0; at < n; at += (uint64_t)length) {
        uint8_t next = script_of(moe_utf8_decode((const uint8_t *)text + at, n - at, &length));
        if (next == 0 || next == script)
            continue;
        if (script)
            MOE_TRY(run_step(p, i + 1, text + start, at - start, at_start && start == 0, err));
        start = at;
        script = next;
    }
    if (start < n)
        MOE_TRY(run_step(p, i + 1, text + start, n - start, at_start && start == 0, err));
    return MOE_OK;
}

static int run_alphabet(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                        bool at_start, struct moe_err *err)
{
    struct moe_buf out = {0};
    alphabet_write(text, n, &out);
    p->spelled = true;
    int status = out.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory")
                            : run_step(p, i + 1, (const char *)out.data, out.size, at_start, err);
    p->spelled = false;
    moe_buf_release(&out);
    return status;
}

static int pass_piece(struct moe_pretokenizer *p, const char *text, uint64_t n, struct moe_err *err)
{
    struct moe_buf bytes = {0};
    if (!p->spelled)
        return p->emit(p->ctx, text, n, err);
    int status = MOE_OK;
    if (!moe_alphabet_read(text, n, &bytes))
        status = moe_fail(err, MOE_ERR_FORMAT, "a piece is not in the bytes' alphabet");
    else if (bytes.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    else
        status = p->emit(p->ctx, (const char *)bytes.data, bytes.size, err);
    moe_buf_release(&bytes);
    return status;
}

static int run_step(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                    bool at_start, struct moe_err *err)
{
    if (i == p->steps->n)
        return pass_piece(p, text, n, err);
    switch (p->steps->steps[i].kind) {
    case MOE_STEP_SCRIPTS:
        return run_scripts(p, i, text, n, at_start, err);
    case MOE_STEP_ALPHABET:
        return run_alphabet(p, i, text, n, at_start, err);
    case MOE_STEP_SPLIT:
        return run_split(p, i, text, n, at_start, err);
    case MOE_STEP_METASPACE:
        return run_metaspace(p, i, text, n, at_start, err);
    default:
        return run_prefix_space(p, i, text, n, at_start, err);
    }
}

int moe_pretokenize(struct moe_pretokenizer *p, const char *text, uint64_t n, bool at_start,
                    struct moe_err *err)
{
    moe_pretokenizer_allow(p, n);
    return n ? run_step(p, 0, text, n, at_start, err) : MOE_OK;
}
