<?php

/*
 * The form of examples/legacy-form on a bad day.  The file WEATHER says how a
 * POST goes, one line each:
 *
 *   page        inserts, and answers with a page of its own, no redirect
 *   error       inserts, and then something goes wrong: 500
 *   gone        inserts, and dies without an answer
 *   nothing     inserts nothing, and answers that there is nothing to show: 204
 *   silent      inserts, and answers the same
 *   download    inserts, and answers with a file to be kept
 *
 * and how the form comes:
 *
 *   no-store    not to be kept by the browser, as PHP's sessions have it
 *   token T     with a submission_token of its own
 *
 * /echo answers with what it got.  While WEATHER.hold is there, no POST gets on;
 * WEATHER.begun gets a byte for each.
 */

function finish($status, $text) {
    header_remove('Location');
    http_response_code($status);
    header('Content-Type: text/html; charset=utf-8');
    echo "<!DOCTYPE html><html><head><title>$text</title></head>",
         "<body><h1>$text</h1></body></html>\n";
}

$method = $_SERVER['REQUEST_METHOD'];

if (str_starts_with($_SERVER['REQUEST_URI'], '/echo')) {
    header('Content-Type: text/plain');
    exit(json_encode(['method' => $method, 'fields' => $_POST + $_GET]));
}

$weather = [];

foreach (file($_SERVER['WEATHER'], FILE_IGNORE_NEW_LINES) as $line) {
    [$word, $value] = explode(' ', "$line ");
    $weather[$word] = $value;
}

if ($method === 'GET') {
    if (isset($weather['no-store'])) {
        header('Cache-Control: no-store');
    }

    if (isset($weather['token'])) {
        $field = "<input type='hidden' name='submission_token' value='$weather[token]'>";
        ob_start(fn ($page) => str_replace('</form>', "$field</form>", $page));
    }

} else {
    file_put_contents("$_SERVER[WEATHER].begun", '.', FILE_APPEND);

    for ($i = 0; $i < 6000 && file_exists("$_SERVER[WEATHER].hold"); $i++) {
        usleep(10000);
        clearstatcache();
    }

    if (isset($weather['nothing'])) {
        http_response_code(204);
        exit;
    }
}

require __DIR__ . '/legacy-form/index.php';

if ($method === 'POST') {
    if (isset($weather['page'])) {
        finish(200, 'Thank you for booking ' . $db->lastInsertId());
    }

    if (isset($weather['silent'])) {
        header_remove('Location');
        http_response_code(204);
    }

    if (isset($weather['download'])) {
        finish(200, 'A file');
        header('Content-Disposition: attachment; filename=file.html');
    }

    if (isset($weather['error'])) {
        finish(500, 'Oops');
    }

    if (isset($weather['gone'])) {
        posix_kill(getmypid(), 9);
    }
}
