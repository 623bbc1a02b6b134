(function (document) {
    'use strict';
})(document);
